package fsm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// Operators are told who is missing, who of these looks dead, and how long the others wait.
func TestRecoveryIsShown(t *testing.T) {
	three := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3)}
	w := heir(t, Config{Term: 4, Authority: true, Registry: recordOf(three...)})
	w.comes(three[0], 0, [16]byte{})
	r := w.m.Snapshot().Recovery
	require.Equal(t, 1, r.Silent)
	require.Len(t, r.Groups[0].Missing, 3)
	w.leave(w.comes(three[1], 0, [16]byte{}))

	report := stood(three...)
	report.Broken = three[2:]
	w.returns(three[1], report)
	st := w.m.Snapshot()
	require.EqualValues(t, 4, st.Term)
	r = st.Recovery
	require.Equal(t, []RecoveringGroup{{Members: 3, Missing: []MissingMember{{UUID: three[0]}, {UUID: three[2], Broken: true}}}}, r.Groups)
	require.Equal(t, 5*time.Second+returnTime, r.Until-r.Began)
	require.False(t, r.Stuck)
	due, _ := w.m.Deadline()
	require.LessOrEqual(t, due, r.Until)
	w.returns(three[0], report)
	w.returns(three[2], stood(three...))
	require.Nil(t, w.m.Snapshot().Recovery)

	w = heir(t, Config{})
	w.returns(three[0], stood(three...))
	require.True(t, w.m.Snapshot().Recovery.Stuck, "two of three may be at another master")
}
