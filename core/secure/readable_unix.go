//go:build unix

package secure

import "io/fs"

// readable reports whether others than the owner of a file can read or change it.
func readable(info fs.FileInfo) bool { return info.Mode().Perm()&0o077 != 0 }
