//go:build unix

package authority

import "os"

func private(mode os.FileMode) bool { return mode.Perm()&0o077 == 0 }
