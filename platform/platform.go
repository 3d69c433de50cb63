package platform

import "time"

// OS is what the module asks of an operating system beyond the standard
// library. An error of ClassUnsupported says that the system has no equivalent;
// callers treat that as "leave it as it is".
type OS interface {
	// Name is the system's name as in GOOS, or "portable".
	Name() string
	// Kind names the class of an error number, "" if it has none. See Classify.
	Kind(err error) Class
	// SetUserTimeout bounds how long sent data may stay unacknowledged.
	SetUserTimeout(fd uintptr, d time.Duration) error
	// SetRetryWait bounds how long the system waits before it sends again what is not
	// acknowledged.
	SetRetryWait(fd uintptr, d time.Duration) error
	// SetQuickAck makes the system acknowledge what it receives at once,
	// until it changes its mind: it has to be repeated.
	SetQuickAck(fd uintptr) error
	// Congestion returns the name of the congestion control of a connection.
	Congestion(fd uintptr) (string, error)
	// SetCongestion chooses the congestion control of a connection by name.
	SetCongestion(fd uintptr, name string) error
	// SetPacing bounds the bytes per second that a connection sends; 0: no bound.
	SetPacing(fd uintptr, bytesPerSecond uint64) error
	// Unsent returns the bytes that were written to a connection and not sent.
	Unsent(fd uintptr) (int, error)
	// SetUnsentLimit bounds the bytes that the system takes from writers of a
	// connection before they are sent.
	SetUnsentLimit(fd uintptr, bytes int) error
	// PrepareListener sets what a listening socket needs before it is bound.
	PrepareListener(fd uintptr) error
	// OpenHandles counts the open descriptors or handles of this process.
	OpenHandles() (int, error)

	// Wait puts the calling thread to sleep while *addr is old: until Wake,
	// until d has passed (d < 0: no bound), or for no reason at all. See Parker.
	Wait(addr *uint32, old uint32, d time.Duration) error
	// Wake wakes one thread that sleeps on addr, if there is one.
	Wake(addr *uint32)
	// SetAffinity binds the calling thread to processors.
	SetAffinity(cpus []int) error
	// Affinity returns the processors that the calling thread may use.
	Affinity() ([]int, error)
	// SetThreadName names the calling thread.
	SetThreadName(name string) error
	// ThreadName returns the calling thread's name.
	ThreadName() (string, error)
	// ThreadID returns the number of the calling thread, 0 if it is unknown.
	ThreadID() int
	// Node returns the number of the memory node of a processor.
	Node(cpu int) (int, error)
}

// Native returns the operating system that the program runs on.
func Native() OS { return native }

// OpenHandles returns the number of descriptors (Windows: handles) that this
// process has open, for leak tests. The error is errors.ErrUnsupported where
// the system does not tell.
func OpenHandles() (int, error) { return native.OpenHandles() }
