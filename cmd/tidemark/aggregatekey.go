package main

import (
	"strings"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// parseAggregate reads an aggregate written as org/type/id. The parts' own rules (length,
// characters) are the server's to check; here only the form is.
func parseAggregate(text string) (*pb.AggregateKey, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return nil, usageError("expected an aggregate written org/type/id, such as acme/orders/4821; found %q", text)
	}
	return &pb.AggregateKey{Org: parts[0], Type: parts[1], Id: parts[2]}, nil
}

// formatAggregate is the text form of a key.
func formatAggregate(k *pb.AggregateKey) string {
	return k.GetOrg() + "/" + k.GetType() + "/" + k.GetId()
}
