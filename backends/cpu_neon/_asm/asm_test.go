package main

import (
	"encoding/binary"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/arch/arm64/arm64asm"
)

var word = regexp.MustCompile(`^\tWORD \$0x([0-9a-f]{8}) // (.*)$`)

// Every word means what is written beside it, says a disassembler that is not ours.
func TestWordsAreTheirMnemonics(t *testing.T) {
	for set, generate := range sets {
		f := &file{}
		generate(f)
		words := 0
		for _, k := range f.kernels {
			for _, line := range k.lines {
				if !strings.Contains(line, "WORD") {
					continue
				}
				m := word.FindStringSubmatch(line)
				if m == nil {
					t.Fatalf("%s: %q", k.name, line)
				}
				v, err := strconv.ParseUint(m[1], 16, 32)
				if err != nil {
					t.Fatal(err)
				}
				inst, err := arm64asm.Decode(binary.LittleEndian.AppendUint32(nil, uint32(v)))
				if err != nil {
					t.Errorf("%s: %s: %v", k.name, line, err)
				} else if got := arm64asm.GNUSyntax(inst); got != m[2] {
					t.Errorf("%s: %s is %s", k.name, line, got)
				}
				words++
			}
		}
		if words == 0 {
			t.Errorf("%s has no words", set)
		}
	}
}

// The places of arguments are those of Go's assembly functions: aligned, and
// the results from the next word on.
func TestFrameLayout(t *testing.T) {
	f := &file{}
	k := f.kernel("f", "", "a *byte, b float32, c float32, d float32", "e float32, g int", "")
	want := []int{0, 8, 12, 16}
	for i, p := range k.params {
		if p.offset != want[i] {
			t.Errorf("%s at %d, want %d", p.name, p.offset, want[i])
		}
	}
	if e, g := k.results[0].offset, k.results[1].offset; e != 24 || g != 32 || k.frame() != 40 {
		t.Errorf("results at %d and %d, frame of %d bytes", e, g, k.frame())
	}
}
