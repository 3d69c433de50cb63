package wire

// C2MAskStatus (id 75) asks a master how it stands. It needs no registration, and a master
// that does not lead answers, too.
type C2MAskStatus struct{}

// M2CStatus (id 79) answers C2MAskStatus.
type M2CStatus struct {
	// JSON is an object (docs/spec/extensions.md, "Status").
	JSON string
}

// Proto implements Packet.
func (C2MAskStatus) Proto() Proto { return C2M }

// ID implements Packet.
func (C2MAskStatus) ID() ID { return 75 }

// Proto implements Packet.
func (M2CStatus) Proto() Proto { return M2C }

// ID implements Packet.
func (M2CStatus) ID() ID { return 79 }
