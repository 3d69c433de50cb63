package fsm

import (
	"cmp"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/diagram"
)

// The diagrams of doc.go are the tables.
func TestDiagram(t *testing.T) {
	steps := map[step]string{
		stepNone: "stepNone", stepRegister: "stepRegister", stepInfo: "stepInfo", stepConnecting: "stepConnecting",
		stepRing: "stepRing", stepRequests: "stepRequests", stepProbing: "stepProbing", stepOptimized: "stepOptimized",
		stepElection: "stepElection", stepFetching: "stepFetching", stepSynced: "stepSynced",
	}
	states := map[opState]string{
		opQueued: "opQueued", opHeld: "opHeld", opVoting: "opVoting", opAhead: "opAhead",
		opRunning: "opRunning", opReported: "opReported", opSettled: "opSettled",
	}
	require.Len(t, steps, int(numSteps))
	require.Len(t, states, int(numOpStates))
	label := func(packet uint16, why string) string {
		if packet == 0 {
			return why
		}
		return cmp.Or(why, fmt.Sprint(packet))
	}
	want := []diagram.Edge{
		{From: "statusFresh", Label: "CallConnect", To: "statusLive"},
		{From: "statusLive", Label: "CallClose, or no master", To: "statusOver"},
		{From: "statusLive", Label: "MasterGone", To: "statusDetached"},
		{From: "statusDetached", Label: "Attached", To: "statusLive"},
		{From: "statusDetached", Label: "CallClose, or no master", To: "statusOver"},
	}
	for _, m := range moves {
		want = append(want, diagram.Edge{From: steps[m.from], Label: label(uint16(m.packet), m.why), To: steps[m.to]})
	}
	for _, m := range opMoves {
		want = append(want, diagram.Edge{From: states[m.from], Label: label(uint16(m.packet), m.why), To: states[m.to]})
	}
	source, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	require.ElementsMatch(t, want, diagram.Read(string(source)))
}
