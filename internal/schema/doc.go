// Package schema says whether payloads match schemas: JSON Schema, Protobuf and Avro.
//
// It owns the meaning of a definition and nothing else: no store, no network, no file. It may
// import api.
//
// Invariants:
//   - Compiling reads the definition alone. A reference to anything outside of it, a URL or a
//     file, is an error; nothing is ever fetched.
//   - A definition or a payload, whatever its bytes, ends in an answer: nesting is bounded, and a
//     panic of a library becomes an error. Regular expressions are Go's, which take linear time.
//   - What this package finds is advice to the node that admits a write. Versions of it may
//     differ, so nothing that is decided in Apply may depend on it.
//
// Dependencies: santhosh-tekuri/jsonschema/v6 is the validator for Go that passes all of the
// JSON Schema test suite, and takes its loader from us; google.golang.org/protobuf, which gRPC
// needs anyway, reads descriptors and messages; twmb/avro parses schemas by the letter of the
// specification, is maintained, and needs no other module. Payloads in Avro are walked by
// this package itself, which so can say where they end, and allocates nothing for what they
// claim to hold.
package schema
