package bounds

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEndpoints(t *testing.T) {
	list, err := Endpoints("a:1, [::1]:2,10.0.0.1:65535", 3)
	require.NoError(t, err)
	require.Equal(t, []string{"a:1", "[::1]:2", "10.0.0.1:65535"}, list)
	list, err = Endpoints(":48148", 1) // this machine, as net.Dial says
	require.NoError(t, err)
	require.Equal(t, []string{":48148"}, list)
	for text, want := range map[string]string{
		"":                             `"" is not HOST:PORT`,
		"a":                            `"a" is not HOST:PORT`,
		"a:1,":                         `"" is not HOST:PORT`,
		"a:1,,b:2":                     `"" is not HOST:PORT`,
		"a:1;b:2":                      "is not HOST:PORT",
		"a:http":                       `the port of "a:http" is not between 1 and 65535`,
		"a:65536":                      "not between",
		"a:0":                          `"a:0" has no port to connect to`,
		"a:1,:2":                       `":2" names no host`,
		"a:1,b:1,a:1":                  `"a:1" is named twice`,
		strings.Repeat("a:1,", 3)[:11]: "named twice",
		"a:1,b:1,c:1,d:1":              "4 are more than 3",
	} {
		_, err := Endpoints(text, 3)
		require.ErrorContains(t, err, want, "%q", text)
	}
}
