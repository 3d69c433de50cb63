// Package checkpoint keeps a shared state on disk: whole or not at all,
// hashed, with its revision, so that a run that stopped can continue where it was.
//
// Trainers mostly use core.SharedState.SaveCheckpoint and LoadCheckpoint, which
// know what is torn. This package finds and reads the files:
//
//	path, skipped, err := checkpoint.Latest(dir) // the newest that is sound
//	...
//	meta, err := state.LoadCheckpoint(path)
//
// A file that was cut or damaged is never loaded, and a crash while one is written
// leaves the older ones as they were.
package checkpoint
