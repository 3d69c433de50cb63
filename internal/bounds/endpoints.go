package bounds

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Endpoints returns the elements of a list of HOST:PORT to connect to, which are separated
// by commas, and between one and most.
func Endpoints(text string, most int) (list []string, err error) {
	for a := range strings.SplitSeq(text, ",") {
		a = strings.TrimSpace(a)
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			return nil, fmt.Errorf("%q is not HOST:PORT", a)
		}
		switch n, err := strconv.ParseUint(port, 10, 16); {
		case err != nil:
			return nil, fmt.Errorf("the port of %q is not between 1 and 65535", a)
		case n == 0:
			return nil, fmt.Errorf("%q has no port to connect to", a)
		case host == "" && strings.Contains(text, ","):
			return nil, fmt.Errorf("%q names no host", a)
		case slices.Contains(list, a):
			return nil, fmt.Errorf("%q is named twice", a)
		}
		list = append(list, a)
	}
	if len(list) > most {
		return nil, fmt.Errorf("%d are more than %d", len(list), most)
	}
	return list, nil
}
