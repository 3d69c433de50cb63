package reduce

// A connection carries frames of streams, and knows of no collective: what is
// sent, where it comes from and what becomes of what is received is the business
// of a source and a sink. An operation is both (Op); whatever a plan lists as lanes
// may be. Connections, which are sender, receiver and what they stand on (bell,
// gauge, ping), use these two interfaces alone.

// source is what frames are sent for. Several connections may ask one at once.
type source interface {
	ender
	// nextFrame makes f what f.conn is to send next, whose batch has so many bytes
	// already. false: there is nothing, or nothing for this connection, which f.left
	// says. f refers to the source's memory until releaseFrame. The caller holds the
	// connection's lock.
	nextFrame(f *frame, batch int) bool
	// prepare encodes what f carries, outside of all locks, on the goroutine that
	// sends it.
	prepare(f *frame)
	// sentFrame says that the system has all of f.
	sentFrame(f *frame)
	// releaseFrame says that f refers to the source's memory no more; whole says that
	// it was sent. idle: no frame does; over: all of the stream was sent. The caller
	// holds the connection's lock.
	releaseFrame(f *frame, whole bool) (idle, over bool)
	// openerFrame returns the frame that announces the end of the stream, once, if
	// one is due.
	openerFrame() (opener, bool)
	// rouseBest sees to it that somebody sends what was left by a connection.
	rouseBest()
}

// sink is what frames are received for.
type sink interface {
	ender
	// beginReceive lets r touch the sink's memory until endReceive; false: the frame
	// is stale.
	beginReceive(r *receiver) bool
	// receiveFrame processes the frame whose header r has read, one in order or a piece.
	receiveFrame(r *receiver, piece bool) error
	// endReceive ends the operation as well if that was its last frame.
	endReceive(r *receiver)
	// received reports whether all has come.
	received() bool
}

// ender is what an operation does about its end.
type ender interface {
	// stopped reports whether it has failed: nothing of it is to be begun any more.
	stopped() bool
	fail(err error)
	// settle lets it end if it is over and nobody touches its memory; async: not on
	// this goroutine.
	settle(async bool)
}

var (
	_ source = (*Op)(nil)
	_ sink   = (*Op)(nil)
)
