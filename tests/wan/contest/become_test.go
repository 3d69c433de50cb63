package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBecomings(t *testing.T) {
	list, err := becomings("regional@2,intercontinental@5")
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, "intercontinental", list[1].profile.Name)
	require.Equal(t, 5, list[1].round)
	list, err = becomings("")
	require.NoError(t, err)
	require.Empty(t, list)
	for _, bad := range []string{"regional", "regional@", "regional@0", "regional@x", "nowhere@1"} {
		_, err := becomings(bad)
		require.Error(t, err, bad)
	}
}
