//go:build linux || darwin

package unix

import (
	"errors"

	"golang.org/x/sys/unix"
)

// kinds maps error numbers to the class names of package platform.
var kinds = map[unix.Errno]string{
	unix.ECONNREFUSED:  "refused",
	unix.ECONNRESET:    "reset",
	unix.ECONNABORTED:  "reset",
	unix.EPIPE:         "reset",
	unix.ENETRESET:     "reset",
	unix.ETIMEDOUT:     "timeout",
	unix.EHOSTUNREACH:  "unreachable",
	unix.ENETUNREACH:   "unreachable",
	unix.EHOSTDOWN:     "unreachable",
	unix.ENETDOWN:      "unreachable",
	unix.EADDRINUSE:    "address in use",
	unix.EADDRNOTAVAIL: "address unavailable",
	unix.EMFILE:        "too many files",
	unix.ENFILE:        "too many files",
	unix.ENOBUFS:       "no memory",
	unix.ENOMEM:        "no memory",
	unix.EINTR:         "interrupted",
	unix.EAGAIN:        "would block",
	unix.EINPROGRESS:   "would block",
	unix.EALREADY:      "would block",
	unix.EACCES:        "permission",
	unix.EPERM:         "permission",
	unix.ENOPROTOOPT:   "unsupported",
	unix.EOPNOTSUPP:    "unsupported",
	unix.EBADF:         "closed",
	unix.ENOTCONN:      "closed",
	unix.ESHUTDOWN:     "closed",
	unix.ENOTSOCK:      "closed",
}

// Kind returns the class of the error number in err's chain, "" if there is
// none or it belongs to no class.
func Kind(err error) string {
	var no unix.Errno
	if !errors.As(err, &no) {
		return ""
	}
	return kinds[no]
}
