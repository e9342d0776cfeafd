package metric

// The values of the label of schema_events_total.
const (
	SchemaValid        = "valid"
	SchemaInvalid      = "invalid"
	SchemaUnregistered = "unregistered"
	SchemaEncrypted    = "encrypted"
)

func schemas() Group {
	results := []Label{{
		Name: "result", Values: []string{SchemaValid, SchemaInvalid, SchemaUnregistered, SchemaEncrypted},
		Meaning: "matches its schema; does not; its version has no schema, though the aggregate type has some; is encrypted, and so not looked at",
	}}
	return Group{
		Title: "Schemas",
		Intro: "What the leader validates (docs/schemas.md). Aggregate types without schemas cost nothing and are not counted.",
		Defs: []Def{
			{Name: "schemas", Kind: Gauge, Help: "Schemas that are registered."},
			{Name: "schemas_limit", Kind: Gauge, Help: "Most schemas that a cluster takes."},
			{Name: "schema_events_total", Kind: Counter, Labels: results, Help: text(`
				Events of writes that passed all other checks, up to the first of a request that does not match. A rate of invalid
				means a writer that is ahead of its schemas or wrong; unregistered, one whose version nobody has registered.`)},
			{Name: "schema_validators", Kind: Gauge, Help: "Compiled schemas that are kept in memory."},
			{Name: "schema_validators_limit", Kind: Gauge, Help: "Most of those."},
			{Name: "schema_validator_bytes", Kind: Gauge, Help: "Bytes of the definitions of those."},
			{Name: "schema_validator_limit_bytes", Kind: Gauge, Help: "Most bytes of those definitions."},
			{Name: "schema_validator_hits_total", Kind: Counter, Help: "Events whose schema was compiled already."},
			{Name: "schema_validator_misses_total", Kind: Counter, Help: "Schemas that were compiled for an event. A rate means that more are in use than fit."},
			{Name: "schema_validator_evictions_total", Kind: Counter, Help: "Compiled schemas that were dropped to stay below the limits."},
		},
	}
}
