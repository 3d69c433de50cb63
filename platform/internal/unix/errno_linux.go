package unix

import "golang.org/x/sys/unix"

// Numbers that only Linux has.
func init() { kinds[unix.ENONET] = "unreachable" }
