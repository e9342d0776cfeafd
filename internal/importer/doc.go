// Package importer moves events between files and a store: rows of CSV, NDJSON objects and
// export lines into appends, and aggregates back into export lines.
//
// It owns what a row becomes (sequence, event id, payload), the export line format, and the
// resending of requests whose outcome is not known. It may import api and talks to a store
// through pb.EventStoreServiceClient only.
//
// # Rows
//
// One row is one request is one batch of one event. The value of the id column names the
// aggregate; client_seq is the row's rank within its aggregate, from 1; event_id is the
// event id column or a hash of the row; every column that has no other use goes into a JSON
// object, in file order, each value as the string that the file holds (CSV has no types,
// and guessing would turn "007" into 7). A CSV column without a name is called "column_N",
// N counting from 0. In an NDJSON object the values keep their JSON form.
//
// # Resuming
//
// Ranks are counted from the rows of the file. A file that was imported may therefore grow at
// its end, and in no other way: from the first row on that was inserted, removed, moved or
// mended before others of its aggregate, the rows of that aggregate are refused, and so they
// are when another file is imported under the same client id into the same aggregates.
//
// Requests are enforced and sent with CONFIRM, so a row that is there already is answered
// with its original result: running an import again, after success or after an
// interruption, adds what is missing and nothing else. A row that had to be resent because
// the outcome of its first sending was lost can be counted as "already there".
//
// After a row was refused, every later row of its aggregate is refused without being sent:
// it would take the sequence of the refused one, and be written a second time once that is
// mended. The refused row keeps its rank, so a row that was never written can be mended where
// it stands and the file imported again. A row that was refused because the store holds
// another one in its place cannot be mended into the store: the history is what it is.
//
// A row whose aggregate cannot be told (a line that is not CSV or JSON, a row with too few or
// too many columns, an id that is not allowed) ends the import, since the rank of any row
// behind it is open: what was read before it is settled, nothing behind it is sent. The line
// must be mended first. This does not concern exports, whose lines bring their versions.
//
// Each row also carries previous_client_seq, so that two imports at the same time under one
// client id cannot leave a gap between them.
//
// # Order and memory
//
// Rows of one aggregate are sent one after another, rows of different aggregates at the same
// time. The file is streamed: what waits to be sent is bounded in rows and bytes. The one
// thing that grows with the file is the rank of each aggregate: about 100 bytes for each
// distinct id.
//
// # Export lines
//
// An export line holds one event and what import needs to make the same batch of it: see
// line.go. Positions, commit times and chain hashes are the store's own and are not in it,
// so an export of an imported export is the same file, byte for byte. Events of a batch are
// consecutive lines and go back as one write.
//
// A batch whose sequences do not allow enforcement (it was written without), or whose events
// have no id, cannot be confirmed; it is guarded by version instead and compared with what
// is there when the guard fails. Writes that landed together on several aggregates come back
// as one request each.
package importer
