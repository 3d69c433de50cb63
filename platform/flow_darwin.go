package platform

import (
	"time"

	"github.com/gopccl/gopccl/platform/internal/darwin"
)

type infoScratch struct{}

// readInfo: the system counts round trips in milliseconds and has no count of
// acknowledged bytes; what the send buffer holds stands in Buffered.
func readInfo(fd uintptr, _ *infoScratch, into *Info) error {
	s, err := darwin.TCPConnectionInfo(fd)
	if err != nil {
		return err
	}
	ms := func(v uint32) time.Duration { return time.Duration(v) * time.Millisecond }
	*into = Info{
		Known: HasTimeout | HasWindow | HasBuffered | HasSent | HasResent,
		RTT:   ms(s.Srtt), RTTVar: ms(s.Rttvar), Timeout: ms(s.Rto), MSS: int(s.Maxseg),
		Window: int(s.Snd_cwnd), Threshold: int(min(s.Snd_ssthresh, 1<<30)), Buffered: int(s.Snd_sbbytes),
		Sent: s.Txbytes, Resent: s.Txretransmitbytes,
	}
	if s.Srtt > 0 {
		into.Known |= HasRTT
	}
	return nil
}
