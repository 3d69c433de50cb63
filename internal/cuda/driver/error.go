package driver

import "fmt"

// Error is a call of the driver that failed.
type Error struct {
	Call   string // as in the driver API, "cuMemAlloc"
	Device int    // ordinal, -1 if none was meant
	Result Result
	Name   string // the driver's own name of the result, for one that has none here
	Detail string // "" or what else is known: a size, a compiler's log
}

// Error names the call, the device, the result and what to do.
func (e *Error) Error() string {
	text := e.Call
	if e.Device >= 0 {
		text += fmt.Sprintf(" on device %d", e.Device)
	}
	text += ": "
	if e.Name != "" && !e.Result.Known() {
		text += e.Name
	} else {
		text += e.Result.String()
	}
	if e.Detail != "" {
		text += " (" + e.Detail + ")"
	}
	if a := known[e.Result].advice; a != "" {
		text += ": " + a
	}
	return text
}

// Is matches an *Error of the same result and, if the target has one, the same call.
func (e *Error) Is(target error) bool {
	o, ok := target.(*Error)
	return ok && o.Result == e.Result && (o.Call == "" || o.Call == e.Call)
}
