package errs_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
)

// The first cause is the error, later ones are said and change nothing.
func TestFirstErrorIsTheCause(t *testing.T) {
	lost := errs.New(errs.RankConnectionLost, "all-reduce", errors.New("reset"))
	again := errs.New(errs.Canceled, "all-reduce", nil)
	require.NoError(t, errs.Then(nil))
	require.Equal(t, error(lost), errs.Then(lost))
	require.Equal(t, error(lost), errs.Then(nil, nil, lost))
	require.Equal(t, error(lost), errs.Then(lost, lost), "what was said is not said again")

	chain := errs.Then(lost, again)
	require.Equal(t, errs.RankConnectionLost, errs.CodeOf(chain))
	require.ErrorIs(t, chain, errs.RankConnectionLost)
	require.NotErrorIs(t, chain, errs.Canceled)
	require.Equal(t, lost.Error()+"; then: "+again.Error(), chain.Error()) // S4-11

	longer := errs.Then(chain, errors.New("a"), errors.New("b"), errors.New("c"), errors.New("d"))
	require.Len(t, chain.(*errs.Chain).Later, 1, "a chain is not changed")
	require.Len(t, longer.(*errs.Chain).Later, 4, "its length is bounded")
	require.ErrorIs(t, longer, errs.RankConnectionLost)
}
