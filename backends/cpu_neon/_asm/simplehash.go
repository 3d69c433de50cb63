package main

// simplehashKernels mixes whole rows of 256 vecs into 256 accumulators, sixteen
// at a time, which keeps four chains of products going. Loads that deal out
// words put word i of four vecs into register i.
func simplehashKernels(f *file) {
	k := f.kernel("mixRowsNEON", "vecs", "acc *[256]uint32, b *byte, rows int", "",
		"mixRowsNEON takes rows of 4096 bytes into the accumulators.")
	first, b, rows := k.load("acc", 0), k.load("b", 1), k.load("rows", 2)
	add, mul := k.words(0x9e3779b1, 30), k.words(0x85ebca6b, 31)
	const at, group = reg(3), reg(4)
	k.loop("row", rows, 1, 0, func() {
		k.ins("MOVD %v, %v", first, at)
		k.ins("MOVD $%d, %v", 256, group)
		k.loop("group", group, 16, 16, func() {
			var words [4][]vec // of each chain
			for i := range words {
				words[i] = some(4*i, 4)
				k.loadFour(b, words[i])
			}
			a, left := some(16, 4), some(20, 4)
			k.loadAll(at, a)
			for w := range 4 {
				for i := range a {
					k.op("add", s4, words[i][w], words[i][w], add)
				}
				for i := range a {
					k.op("eor", b16, a[i], a[i], words[i][w])
				}
				for i := range a { // rotate by 7
					k.shift("shl", s4, left[i], a[i], 7)
				}
				for i := range a {
					k.shift("sri", s4, left[i], a[i], 25)
				}
				for i := range a {
					k.op("mul", s4, a[i], left[i], mul)
				}
			}
			k.storeAll(at, a)
			k.advance(64, at)
		})
	})
}
