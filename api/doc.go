// Package api owns the codes of Tidemark's answers: one table that says, for every code,
// its number, its name, its gRPC status, what it means, whether the write of the refused
// call may still land, and which detail it carries; and Error, the only error type that
// reaches a client.
//
// It may import the generated package api/tidemark/v1 and nothing else of this module, so
// that every other package can name a code.
//
// Invariants:
//   - Every number of pb.ErrorCode is in the table once. docs/errors.md is generated from
//     the table, and the code table of docs/contract.md is compared with it.
//   - Every status made here carries google.rpc.ErrorInfo with the domain "tidemark", the
//     reason in UPPER_SNAKE_CASE and the number in metadata["code"].
//   - Nothing that may still land has a code whose Outcome is No; a code outside the table
//     counts as one that may.
//   - No code maps to a status that clients or proxies retry by themselves unless its
//     Outcome is No.
//
// google.golang.org/genproto/googleapis/rpc brings ErrorInfo, BadRequest and RetryInfo, the
// messages that gRPC tools already know how to show.
package api
