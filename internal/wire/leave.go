package wire

// Leaving is what a member says that leaves between two collectives, and what comes of
// it (docs/spec/extensions.md, "Leaving"). Both ends have announced LeavePlans.
type (
	// C2MLeave (id 72) asks to leave. The sender has nothing under way, and begins
	// nothing before the answer.
	C2MLeave struct{}
	// M2CPrepareLeave (id 74) is M2CPrepareRing of a ring without Leaver. Operations
	// that began eagerly and have no commence are taken back, and none begins
	// before M2CRingWithout, with which Epoch begins; 0: none does then either.
	M2CPrepareLeave struct {
		Change uint64
		Epoch  uint64
		Leaver UUID
		Peers  []PeerEndpoint
	}
	// M2CRingWithout (id 76) is M2CSwitchRing to the ring of that Change. World and
	// Largest are the peers of the run and of its largest group from now on.
	M2CRingWithout struct {
		Change         uint64
		World, Largest uint64
		Ring           []UUID
	}
	// M2CLeaveAnswer (id 77): the sender of C2MLeave has left, or why it stays.
	M2CLeaveAnswer struct {
		Left   bool
		Reason string
	}
)

// LeavePlans is the version of Ext.Plans from which on an end knows these packets.
const LeavePlans = 2

func (C2MLeave) Proto() Proto        { return C2M }
func (C2MLeave) ID() ID              { return 72 }
func (M2CPrepareLeave) Proto() Proto { return M2C }
func (M2CPrepareLeave) ID() ID       { return 74 }
func (M2CRingWithout) Proto() Proto  { return M2C }
func (M2CRingWithout) ID() ID        { return 76 }
func (M2CLeaveAnswer) Proto() Proto  { return M2C }
func (M2CLeaveAnswer) ID() ID        { return 77 }

func appendPrepareLeave(dst []byte, p *M2CPrepareLeave) []byte {
	dst = append(appendU64(appendU64(dst, p.Change), p.Epoch), p.Leaver[:]...)
	return appendEndpoints(dst, p.Peers)
}

func appendRingWithout(dst []byte, p *M2CRingWithout) []byte {
	return appendUUIDs(appendU64(appendU64(appendU64(dst, p.Change), p.World), p.Largest), p.Ring)
}
