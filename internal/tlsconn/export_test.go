package tlsconn

// TakeTurn takes the turn to write, as a handshake for new keys does, and returns what
// gives it up.
func TakeTurn(c *Conn) func() {
	c.writer.turn.Lock()
	return c.writer.turn.Unlock
}
