package platform

import (
	"time"

	"github.com/gopccl/gopccl/platform/internal/windows"
)

type infoScratch = windows.InfoCall

// readInfo: what left and is not on its way has arrived.
func readInfo(fd uintptr, s *infoScratch, into *Info) error {
	if err := s.Do(fd); err != nil {
		return err
	}
	us := func(v uint32) time.Duration { return time.Duration(v) * time.Microsecond }
	t := &s.Info
	*into = Info{
		Known: HasWindow | HasInFlight | HasAcked | HasSent | HasResent,
		RTT:   us(t.RTTUs), MinRTT: us(t.MinRTTUs), MSS: int(t.MSS),
		Window: int(t.Cwnd), InFlight: int(t.BytesInFlight),
		Acked: t.BytesOut - min(t.BytesOut, uint64(t.BytesInFlight)), Sent: t.BytesOut + uint64(t.BytesRetrans), Resent: uint64(t.BytesRetrans),
	}
	if t.RTTUs > 0 {
		into.Known |= HasRTT
	}
	if t.MinRTTUs > 0 && t.MinRTTUs < 1<<32-1 {
		into.Known |= HasMinRTT
	}
	return nil
}
