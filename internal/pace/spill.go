package pace

// spilled is how many segments are lost together where more left at once than a queue on the way had room for. Chance
// loses fewer, but of windows that are paced already.
const spilled = 8

// Spills reports whether lost bytes, which a connection whose segments carry so many misses at one time and not after
// a timeout, are what a queue on the way had no room for. Its windows had better not leave at once then. A queue may
// be a single flow's, which no other connection shows.
func Spills(lost, segment int) bool { return segment > 0 && lost >= spilled*segment }
