// Package tidemarkv1 holds the messages and services of Tidemark's API, generated from the
// .proto files beside it by `make generate`. Those files document every message; this one
// is the only one written by hand.
//
// It imports nothing of this module. Packages import it as pb.
package tidemarkv1
