package platform

import (
	"errors"
	"time"
	"unsafe"

	"github.com/gopccl/gopccl/platform/internal/linux"
)

type infoScratch = linux.TCPInfo

// readInfo fills in what this kernel knows: older ones return fewer bytes.
func readInfo(fd uintptr, s *infoScratch, into *Info) error {
	if err := linux.GetTCPInfo(fd, s); err != nil {
		return err
	}
	if *into = fromLinux(s); into.Known == 0 { // an emulated kernel
		return errors.ErrUnsupported
	}
	return nil
}

func fromLinux(s *linux.TCPInfo) (i Info) {
	told := func(field Fields, offset, size uintptr) {
		if offset+size <= uintptr(s.Len) {
			i.Known |= field
		}
	}
	us := func(v uint64) time.Duration { return time.Duration(v) * time.Microsecond }
	mss := int(s.Snd_mss)
	i = Info{
		RTT: us(uint64(s.Rtt)), RTTVar: us(uint64(s.Rttvar)), MinRTT: us(uint64(s.Min_rtt)), Timeout: us(uint64(s.Rto)), MSS: mss,
		Window: int(s.Snd_cwnd) * mss, Threshold: int(min(s.Snd_ssthresh, 1<<30)) * mss,
		InFlight: int(s.Unacked) * mss, Unsent: int(s.Notsent_bytes), Lost: int(s.Lost) * mss, Sacked: int(s.Sacked) * mss, Retries: int(s.Retransmits),
		Heard: time.Duration(min(s.Last_ack_recv, s.Last_data_recv)) * time.Millisecond, Probes: int(s.Probes),
		Acked: s.Bytes_acked, Sent: s.Bytes_sent, Resent: s.Bytes_retrans,
		DeliveryRate: s.Delivery_rate, PacingRate: s.Pacing_rate,
		Busy: us(s.Busy_time), PeerLimited: us(s.Rwnd_limited), BufferLimited: us(s.Sndbuf_limited),
		PeerWindow: int(s.Snd_wnd), Came: s.Data_segs_in, Aside: s.Rcv_ooopack, CameMSS: int(s.Rcv_mss), Received: s.Bytes_received,
	}
	told(HasRTT|HasTimeout|HasWindow|HasInFlight|HasLost|HasRetries|HasHeard, unsafe.Offsetof(s.Total_retrans), 0)
	told(HasPacing, unsafe.Offsetof(s.Pacing_rate), 8)
	told(HasAcked, unsafe.Offsetof(s.Bytes_acked), 8)
	told(HasUnsent, unsafe.Offsetof(s.Notsent_bytes), 4)
	told(HasMinRTT, unsafe.Offsetof(s.Min_rtt), 4)
	told(HasCame, unsafe.Offsetof(s.Data_segs_in), 4)
	told(HasDelivery, unsafe.Offsetof(s.Delivery_rate), 8)
	told(HasLimits, unsafe.Offsetof(s.Sndbuf_limited), 8)
	told(HasSent, unsafe.Offsetof(s.Bytes_sent), 8)
	told(HasAside, unsafe.Offsetof(s.Rcv_ooopack), 4)
	told(HasPeerWindow, unsafe.Offsetof(s.Snd_wnd), 4)
	told(HasResent, unsafe.Offsetof(s.Bytes_retrans), 8)
	if s.Min_rtt == 1<<32-1 { // never measured
		i.MinRTT, i.Known = 0, i.Known&^HasMinRTT
	}
	if s.Snd_mss == 0 { // an emulated kernel, which fills in nothing of this
		i.Known &^= HasInFlight | HasUnsent | HasHeard
	}
	if s.Rtt == 0 {
		i.Known &^= HasRTT
	}
	return i
}
