// Package process starts the child processes of tests and measurements, hears
// what they report, and ends them with their parent, however that one ends.
package process
