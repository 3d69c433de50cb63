// Package topo is the extension point for ring solvers: the bandwidth matrix,
// the objective, the interface of solvers and their registry.
//
// A master measures links, puts the rates into a [Matrix], and asks a [Solver] for
// the order of the ring. A solver of one's own implements two methods, registers
// itself, and is chosen by its name:
//
//	func init() { topo.Register(mySolver{}) }
//
// in a package that the master's program imports, and MasterOptions.Solver or
// `topology.solver` names it. What a solver says is checked ([Problem.Verify]);
// the suite core/topo/solvertest checks the solver.
package topo
