package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gopccl/gopccl/plugins/sdk"
)

// programme is a linear or integer programme: minimise cost*x, 0 <= x <= 1.
type programme struct {
	cost    []float64
	rows    []row
	integer bool
}

// row is a constraint: the sum of some variables equals, or is at least, rhs.
type row struct {
	vars  []int
	equal bool
	rhs   int
}

// answer is the optimum of a programme.
type answer struct {
	infeasible bool
	objective  float64
	x          []float64
	reduced    []float64 // reduced costs, of linear programmes
}

// engine is a program that solves programmes in CPLEX's LP format.
type engine struct {
	path string
	args func(lp, solution string, integer bool) []string
	read func(text string, p programme) (answer, error)
}

var errNoEngine = errors.New("neither glpsol (Debian: glpk-utils) nor cbc (coinor-cbc) is on PATH")

func findEngine() (*engine, error) {
	for _, e := range []*engine{
		{"glpsol", glpsolArgs, readGLPK},
		{"cbc", cbcArgs, readCBC},
	} {
		if path, err := exec.LookPath(e.path); err == nil {
			e.path = path
			return e, nil
		}
	}
	return nil, errNoEngine
}

func glpsolArgs(lp, solution string, integer bool) []string {
	args := []string{"--lp", lp, "--write", solution}
	if integer {
		return append(args, "--mipgap", "0", "--pcost", "--clique")
	}
	return append(args, "--nomip")
}

func cbcArgs(lp, solution string, integer bool) []string {
	if !integer {
		return []string{lp, "initialSolve", "printingOptions", "all", "solution", solution}
	}
	return []string{lp, "ratioGap", "0", "allowableGap", "0", "solve", "printingOptions", "all", "solution", solution}
}

// solve runs the engine; it ends with ctx.
func (e *engine) solve(ctx context.Context, p programme) (answer, error) {
	dir, err := os.MkdirTemp("", "lpexact")
	if err != nil {
		return answer{}, err
	}
	defer os.RemoveAll(dir)
	lp, solution := filepath.Join(dir, "problem.lp"), filepath.Join(dir, "solution")
	if err := p.write(lp); err != nil {
		return answer{}, err
	}
	out, err := run(ctx, e.path, e.args(lp, solution, p.integer))
	if ctx.Err() != nil {
		return answer{}, ctx.Err()
	}
	if err != nil {
		return answer{}, fmt.Errorf("%s: %w: %s", e.path, err, tail(out))
	}
	text, err := os.ReadFile(solution)
	if err != nil {
		return answer{}, fmt.Errorf("%s wrote no solution: %s", e.path, tail(out))
	}
	return e.read(string(text), p)
}

func run(ctx context.Context, path string, args []string) (string, error) {
	var out strings.Builder
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := sdk.Run(cmd)
	return out.String(), err
}

func tail(s string) string { return s[max(0, len(s)-300):] }

// write writes p in CPLEX's LP format.
func (p programme) write(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<16)
	fmt.Fprint(w, "Minimize\n obj:")
	for i, c := range p.cost {
		fmt.Fprintf(w, " + %s x%d\n", strconv.FormatFloat(c, 'g', 17, 64), i)
	}
	fmt.Fprint(w, "Subject To\n")
	for i, r := range p.rows {
		fmt.Fprintf(w, " r%d:", i)
		for _, v := range r.vars {
			fmt.Fprintf(w, " + x%d\n", v)
		}
		op := ">="
		if r.equal {
			op = "="
		}
		fmt.Fprintf(w, " %s %d\n", op, r.rhs)
	}
	fmt.Fprint(w, "Bounds\n")
	for i := range p.cost {
		fmt.Fprintf(w, " 0 <= x%d <= 1\n", i)
	}
	if p.integer {
		fmt.Fprint(w, "Generals\n")
		for i := range p.cost {
			fmt.Fprintf(w, " x%d\n", i)
		}
	}
	fmt.Fprint(w, "End\n")
	return errors.Join(w.Flush(), f.Close())
}

var errAnswer = errors.New("the answer cannot be read")

// readGLPK reads what glpsol --write gives: columns are numbered in the order
// in which the objective names them.
func readGLPK(text string, p programme) (answer, error) {
	a := answer{x: make([]float64, len(p.cost)), reduced: make([]float64, len(p.cost))}
	ok := false
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) == 7 && f[0] == "s" && f[1] == "bas":
			// Primal and dual status: f feasible, n or i none.
			a.infeasible = f[4] != "f" || f[5] != "f"
			a.objective, ok = number(f[6])
		case len(f) == 6 && f[0] == "s" && f[1] == "mip":
			switch f[4] {
			case "o":
			case "n":
				a.infeasible = true
			default:
				return a, fmt.Errorf("%w: status %q", errAnswer, f[4])
			}
			a.objective, ok = number(f[5])
		case len(f) >= 3 && f[0] == "j":
			i, err := strconv.Atoi(f[1])
			if err != nil || i < 1 || i > len(p.cost) {
				return a, errAnswer
			}
			value, good := number(f[2])
			if len(f) == 5 { // status, primal, dual
				var good2 bool
				value, good = number(f[3])
				a.reduced[i-1], good2 = number(f[4])
				good = good && good2
			}
			if !good {
				return a, errAnswer
			}
			a.x[i-1] = value
		}
	}
	if !ok {
		return a, errAnswer
	}
	return a, nil
}

// readCBC reads what cbc's solution command gives: a status line, then number,
// name, value and reduced cost of every row and column.
func readCBC(text string, p programme) (answer, error) {
	a := answer{x: make([]float64, len(p.cost)), reduced: make([]float64, len(p.cost))}
	head, rest, _ := strings.Cut(text, "\n")
	switch {
	case strings.HasPrefix(head, "Optimal"):
	case strings.HasPrefix(head, "Infeasible"), strings.HasPrefix(head, "Integer infeasible"):
		a.infeasible = true
		return a, nil
	default:
		return a, fmt.Errorf("%w: %q", errAnswer, head)
	}
	var ok bool
	f := strings.Fields(head)
	if a.objective, ok = number(f[len(f)-1]); !ok {
		return a, errAnswer
	}
	for line := range strings.Lines(rest) {
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "**"))
		if len(f) != 4 || f[1][0] != 'x' {
			continue
		}
		i, err := strconv.Atoi(f[1][1:])
		value, good := number(f[2])
		reduced, good2 := number(f[3])
		if err != nil || i < 0 || i >= len(p.cost) || !good || !good2 {
			return a, errAnswer
		}
		a.x[i], a.reduced[i] = value, reduced
	}
	return a, nil
}

func number(s string) (float64, bool) {
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil && !math.IsNaN(v) && !math.IsInf(v, 0)
}
