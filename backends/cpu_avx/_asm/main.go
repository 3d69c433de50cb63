// Command asm writes the amd64 assembly of gopccl with avo: -set names a set
// of kernels, -out and -stubs the files, -pkg their package. tools/ci/asm.sh
// runs it for every set and compares with what is committed.
package main

import (
	"flag"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var sets = map[string]func(){
	"reduce":     reduceKernels,
	"minmax":     minmaxKernels,
	"zeropoint":  zeropointKernels,
	"simplehash": simplehashKernels,
}

func main() {
	set := flag.String("set", "", "reduce, minmax, zeropoint or simplehash")
	flag.Parse()
	generate, known := sets[*set]
	if !known {
		panic("unknown set " + *set)
	}
	ConstraintExpr("amd64,!noasm")
	generate()
	Generate()
}

// width is a vector length.
type width struct {
	suffix string
	bytes  int
	vector func() reg.VecVirtual
}

var (
	avx2   = width{"AVX2", 32, YMM}
	avx512 = width{"AVX512", 64, ZMM}
)

// load moves a whole vector from unaligned memory.
func (w width) load(m Mem, r Op) { w.move(m, r) }

// store moves a whole vector to unaligned memory.
func (w width) store(r Op, m Mem) { w.move(r, m) }

func (w width) move(from, to Op) {
	if w.bytes == 64 {
		VMOVDQU64(from, to)
		return
	}
	VMOVDQU(from, to)
}

// function starts a kernel; none of them uses the stack or keeps a pointer.
func function(name, signature, doc string) {
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
	Doc(doc)
}

// pointer loads a pointer argument.
func pointer(name string) Mem { return Mem{Base: Load(Param(name), GP64())} }

// count loads an integer argument.
func count(name string) reg.GPVirtual { return Load(Param(name), GP64()).(reg.GPVirtual) }

// advance moves pointers by n bytes.
func advance(n int, ps ...Mem) {
	for _, p := range ps {
		ADDQ(U32(n), p.Base)
	}
}

// loop runs body while n counts down in steps, as long as whole steps are left.
func loop(label string, n reg.GPVirtual, step int, body func()) {
	Label(label)
	CMPQ(n, U32(step))
	JLT(LabelRef(label + "done"))
	body()
	SUBQ(U32(step), n)
	JMP(LabelRef(label))
	Label(label + "done")
}

// words returns a YMM register whose 32 bit lanes hold v.
func words(v uint32) reg.VecVirtual {
	g, y := GP32(), YMM()
	MOVL(U32(v), g)
	VMOVD(g, y.AsX())
	VPBROADCASTD(y.AsX(), y)
	return y
}

// float32s and float64s broadcast an argument.
func float32s(name string) reg.VecVirtual {
	y := YMM()
	b, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(b.Addr, y)
	return y
}

func float64s(name string) reg.VecVirtual {
	y := YMM()
	b, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSD(b.Addr, y)
	return y
}
