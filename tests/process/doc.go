// Package process ends the child processes of tests and measurements with
// their parent, however that one ends.
package process
