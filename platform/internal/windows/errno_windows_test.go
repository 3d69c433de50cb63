package windows

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/windows"
)

func TestEveryErrorNumberHasItsKind(t *testing.T) {
	want := map[string][]syscall.Errno{
		"refused": {windows.WSAECONNREFUSED, windows.ERROR_CONNECTION_REFUSED, windows.ERROR_PORT_UNREACHABLE},
		"reset": {
			windows.WSAECONNRESET, windows.WSAECONNABORTED, windows.WSAENETRESET, windows.WSAEDISCON,
			windows.ERROR_NETNAME_DELETED, windows.ERROR_CONNECTION_ABORTED, windows.ERROR_BROKEN_PIPE,
		},
		"timeout": {windows.WSAETIMEDOUT, windows.ERROR_SEM_TIMEOUT, syscall.Errno(windows.WAIT_TIMEOUT)},
		"unreachable": {
			windows.WSAEHOSTUNREACH, windows.WSAENETUNREACH, windows.WSAEHOSTDOWN, windows.WSAENETDOWN,
			windows.ERROR_HOST_UNREACHABLE, windows.ERROR_NETWORK_UNREACHABLE,
		},
		"address in use":      {windows.WSAEADDRINUSE},
		"address unavailable": {windows.WSAEADDRNOTAVAIL},
		"too many files":      {windows.WSAEMFILE, windows.ERROR_TOO_MANY_OPEN_FILES},
		"no memory":           {windows.WSAENOBUFS, windows.ERROR_NOT_ENOUGH_MEMORY, windows.ERROR_NO_SYSTEM_RESOURCES},
		"interrupted":         {windows.WSAEINTR},
		"would block":         {windows.WSAEWOULDBLOCK, windows.WSAEINPROGRESS, windows.WSAEALREADY},
		"permission":          {windows.WSAEACCES, windows.ERROR_ACCESS_DENIED},
		"unsupported":         {windows.WSAENOPROTOOPT, windows.WSAEOPNOTSUPP},
		"closed": {
			windows.WSAEBADF, windows.WSAENOTCONN, windows.WSAESHUTDOWN, windows.WSAENOTSOCK,
			windows.ERROR_INVALID_HANDLE, windows.ERROR_OPERATION_ABORTED,
		},
		"": {windows.ERROR_FILE_NOT_FOUND},
	}
	seen := 0
	for kind, numbers := range want {
		for _, no := range numbers {
			wrapped := fmt.Errorf("outer: %w", &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("wsarecv", no)})
			require.Equal(t, kind, Kind(no), "%v", no) // S0-02
			require.Equal(t, kind, Kind(wrapped), "%v", no)
		}
		if kind != "" {
			seen += len(numbers)
		}
	}
	require.Equal(t, len(kinds), seen, "a number without a row here")
	require.Empty(t, Kind(nil))
	require.Empty(t, Kind(errors.New("no number")))
}
