package diagram

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRead(t *testing.T) {
	require.Equal(t, []Edge{
		{"Idle", "all voted", "Voting"},
		{"Voting", "3", "Idle"},
		{"Voting", "lost", "Gone"},
		{"Idle", "call", "Busy"},
		{"Idle", "other", "Voting"},
		{"?", "nothing", "Busy"},
	}, Read(`// Text about a-b --> c, and more.
//
//	Idle ---all voted----> Voting --3--> Idle
//	 |                      |
//	 |                      +--lost--> Gone
//	 +--call--> Busy
//	 |
//	 +--other--> Voting
//
//	      +--nothing--> Busy
package x
`))
}
