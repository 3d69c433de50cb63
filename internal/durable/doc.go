// Package durable writes files that survive a crash, and takes the locks of directories
// that have such files.
//
// A file is written under a name of its own, brought to the disk, and then renamed. After a
// crash of the process or of the machine at any time the path has either what it had or
// what was written, as a whole. What a crash leaves beside it can be told by its name
// ([Leaving]).
package durable
