//go:build !race

package dtype

// RaceRead tells the race detector, if there is one, that assembly reads b.
func RaceRead([]byte) {}

// RaceWrite tells the race detector, if there is one, that assembly writes b.
func RaceWrite([]byte) {}
