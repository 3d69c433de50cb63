package windows

import (
	"errors"
	"syscall"

	"golang.org/x/sys/windows"
)

// kinds maps error numbers, of Winsock and of the system, to the class names
// of package platform. Overlapped calls report some network events with
// numbers of the system: a reset as ERROR_NETNAME_DELETED, for instance.
var kinds = map[syscall.Errno]string{
	windows.WSAECONNREFUSED:           "refused",
	windows.ERROR_CONNECTION_REFUSED:  "refused",
	windows.ERROR_PORT_UNREACHABLE:    "refused",
	windows.WSAECONNRESET:             "reset",
	windows.WSAECONNABORTED:           "reset",
	windows.WSAENETRESET:              "reset",
	windows.WSAEDISCON:                "reset",
	windows.ERROR_NETNAME_DELETED:     "reset",
	windows.ERROR_CONNECTION_ABORTED:  "reset",
	windows.ERROR_BROKEN_PIPE:         "reset",
	windows.WSAETIMEDOUT:              "timeout",
	windows.ERROR_SEM_TIMEOUT:         "timeout",
	windows.WAIT_TIMEOUT:              "timeout",
	windows.WSAEHOSTUNREACH:           "unreachable",
	windows.WSAENETUNREACH:            "unreachable",
	windows.WSAEHOSTDOWN:              "unreachable",
	windows.WSAENETDOWN:               "unreachable",
	windows.ERROR_HOST_UNREACHABLE:    "unreachable",
	windows.ERROR_NETWORK_UNREACHABLE: "unreachable",
	windows.WSAEADDRINUSE:             "address in use",
	windows.WSAEADDRNOTAVAIL:          "address unavailable",
	windows.WSAEMFILE:                 "too many files",
	windows.ERROR_TOO_MANY_OPEN_FILES: "too many files",
	windows.WSAENOBUFS:                "no memory",
	windows.ERROR_NOT_ENOUGH_MEMORY:   "no memory",
	windows.ERROR_NO_SYSTEM_RESOURCES: "no memory",
	windows.WSAEINTR:                  "interrupted",
	windows.WSAEWOULDBLOCK:            "would block",
	windows.WSAEINPROGRESS:            "would block",
	windows.WSAEALREADY:               "would block",
	windows.WSAEACCES:                 "permission",
	windows.ERROR_ACCESS_DENIED:       "permission",
	windows.WSAENOPROTOOPT:            "unsupported",
	windows.WSAEOPNOTSUPP:             "unsupported",
	windows.WSAEBADF:                  "closed",
	windows.WSAENOTCONN:               "closed",
	windows.WSAESHUTDOWN:              "closed",
	windows.WSAENOTSOCK:               "closed",
	windows.ERROR_INVALID_HANDLE:      "closed",
	windows.ERROR_OPERATION_ABORTED:   "closed",
}

// Kind returns the class of the error number in err's chain, "" if there is
// none or it belongs to no class.
func Kind(err error) string {
	var no syscall.Errno
	if !errors.As(err, &no) {
		return ""
	}
	return kinds[no]
}
