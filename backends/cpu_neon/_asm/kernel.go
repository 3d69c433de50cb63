package main

import (
	"fmt"
	"strings"
)

// file collects kernels in the order in which they are written.
type file struct{ kernels []*kernel }

// kernel is one function. No kernel calls, uses the stack or keeps a pointer.
type kernel struct {
	name, doc string
	params    []param
	results   []param
	lines     []string
	loops     []work
	open      []*work
	unit      string // what the loops count
}

// work is what a loop does in one turn.
type work struct{ instructions, elements int }

// param is an argument or a result with its place in the frame.
type param struct {
	name, typ string
	offset    int
}

var sizes = map[string]int{"float32": 4, "int32": 4, "float64": 8, "int": 8}

func size(typ string) int {
	if strings.HasPrefix(typ, "*") {
		return 8
	}
	n, known := sizes[typ]
	if !known {
		panic("no size for " + typ)
	}
	return n
}

// layout gives places to a list of "name type" from offset on.
func layout(list string, offset int) ([]param, int) {
	var ps []param
	for _, one := range strings.Split(list, ", ") {
		name, typ, found := strings.Cut(one, " ")
		if !found {
			continue
		}
		n := size(typ)
		offset = (offset + n - 1) &^ (n - 1)
		ps = append(ps, param{name, typ, offset})
		offset += n
	}
	return ps, offset
}

// kernel starts a function; params and results are lists of "name type".
func (f *file) kernel(name, unit, params, results, doc string) *kernel {
	k := &kernel{name: name, unit: unit, doc: doc}
	var end int
	k.params, end = layout(params, 0)
	k.results, _ = layout(results, (end+7)&^7) // results start at a word
	f.kernels = append(f.kernels, k)
	return k
}

func (k *kernel) frame() int {
	end := 0
	for _, p := range append(k.params[:len(k.params):len(k.params)], k.results...) {
		end = p.offset + size(p.typ)
	}
	return end
}

func (k *kernel) assembly() string {
	lines := strings.Join(k.lines, "\n")
	return fmt.Sprintf("\n// %s\nTEXT ·%s(SB), NOSPLIT, $0-%d\n%s\n\tRET\n", k.signature(), k.name, k.frame(), lines)
}

func (k *kernel) declaration() string {
	return fmt.Sprintf("\n// %s\n//\n//go:noescape\n%s\n", k.doc, k.signature())
}

func (k *kernel) signature() string {
	list := func(ps []param) string {
		var s []string
		for _, p := range ps {
			s = append(s, p.name+" "+p.typ)
		}
		return strings.Join(s, ", ")
	}
	s := fmt.Sprintf("func %s(%s)", k.name, list(k.params))
	if len(k.results) > 0 {
		s += " (" + list(k.results) + ")"
	}
	return s
}

// ins writes one line of Go's assembly language.
func (k *kernel) ins(format string, args ...any) {
	k.lines = append(k.lines, "\t"+fmt.Sprintf(format, args...))
	for _, w := range k.open {
		w.instructions++
	}
}

func (k *kernel) find(name string, ps []param) param {
	for _, p := range ps {
		if p.name == name {
			return p
		}
	}
	panic(k.name + " has no " + name)
}

func (p param) String() string { return fmt.Sprintf("%s+%d(FP)", p.name, p.offset) }

// load moves a pointer or an integer argument to a register.
func (k *kernel) load(name string, to reg) reg {
	k.ins("MOVD %v, %v", k.find(name, k.params), to)
	return to
}

// broadcast moves an argument of four or eight bytes to all lanes of a vector.
func (k *kernel) broadcast(name string, to vec) vec {
	p := k.find(name, k.params)
	if size(p.typ) == 4 {
		k.ins("MOVWU %v, %v", p, scratch)
		k.ins("VDUP %v, %v.S4", scratch, to)
	} else {
		k.ins("MOVD %v, %v", p, scratch)
		k.ins("VDUP %v, %v.D2", scratch, to)
	}
	return to
}

// words fills the 32 bit lanes of a vector with a constant.
func (k *kernel) words(v uint32, to vec) vec {
	k.ins("MOVD $%#x, %v", v, scratch)
	k.ins("VDUP %v, %v.S4", scratch, to)
	return to
}

// storeResult returns the lowest lane of a vector or a register.
func (k *kernel) storeResult(name string, v fmt.Stringer) {
	p := k.find(name, k.results)
	switch v := v.(type) {
	case vec:
		k.ins("FMOVS F%d, %v", int(v), p)
	default:
		k.ins("MOVD %v, %v", v, p)
	}
}

func (k *kernel) label(name string) { k.lines = append(k.lines, "", name+":") }

// loop runs body while n counts down in steps, as long as whole steps are
// left; n is what is left behind it, and also where body jumps to label+"left".
// elements is how many elements body handles.
func (k *kernel) loop(label string, n reg, step, elements int, body func()) {
	k.ins("SUBS $%d, %v, %v", step, n, n)
	k.ins("BLT %sleft", label)
	k.label(label)
	w := &work{elements: elements}
	k.open = append(k.open, w)
	body()
	k.ins("SUBS $%d, %v, %v", step, n, n)
	k.ins("BGE %s", label)
	k.open = k.open[:len(k.open)-1]
	k.loops = append(k.loops, *w)
	k.label(label + "left")
	k.ins("ADD $%d, %v, %v", step, n, n)
}

// widest is the loop that handles the most elements in one turn.
func (k *kernel) widest() work {
	var w work
	for _, l := range k.loops {
		if l.elements > w.elements {
			w = l
		}
	}
	return w
}
