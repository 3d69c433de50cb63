package windows

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// sioTCPInfo is SIO_TCP_INFO of mstcpip.h.
const sioTCPInfo = windows.IOC_INOUT | windows.IOC_VENDOR | 39

// TCPInfo is TCP_INFO_v0.
type TCPInfo struct {
	State             uint32
	MSS               uint32
	ConnectionTimeMs  uint64
	TimestampsEnabled uint8
	RTTUs             uint32
	MinRTTUs          uint32
	BytesInFlight     uint32
	Cwnd              uint32
	SndWnd            uint32
	RcvWnd            uint32
	RcvBuf            uint32
	BytesOut          uint64
	BytesIn           uint64
	BytesReordered    uint32
	BytesRetrans      uint32
	FastRetrans       uint32
	DupAcksIn         uint32
	TimeoutEpisodes   uint32
	SynRetrans        uint8
}

// InfoCall keeps what SIO_TCP_INFO reads and writes.
type InfoCall struct {
	version, n uint32
	Info       TCPInfo
}

// Do fills in c.Info. Windows knows it since version 1703, Wine does not.
func (c *InfoCall) Do(fd uintptr) error {
	c.version, c.Info = 0, TCPInfo{}
	err := windows.WSAIoctl(windows.Handle(fd), sioTCPInfo, (*byte)(unsafe.Pointer(&c.version)), uint32(unsafe.Sizeof(c.version)),
		(*byte)(unsafe.Pointer(&c.Info)), uint32(unsafe.Sizeof(c.Info)), &c.n, nil, 0)
	if err == nil && uintptr(c.n) < unsafe.Offsetof(c.Info.SynRetrans) {
		err = windows.ERROR_INVALID_DATA
	}
	return os.NewSyscallError("WSAIoctl", err)
}
