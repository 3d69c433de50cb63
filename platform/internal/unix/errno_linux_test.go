package unix

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func init() { more = 1 }

func TestNumberOfLinuxAlone(t *testing.T) {
	require.Equal(t, "unreachable", Kind(unix.ENONET))
}
