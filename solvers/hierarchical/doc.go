// Package hierarchical finds rings for groups that sit in sites: cheap links
// inside a site, dear ones between sites. Its rings enter every site once and
// leave it once, so that a group over k sites uses exactly k of the dear links.
//
// Inside a site it builds chains that visit all its peers; between sites a
// dynamic programme over chains merges them: the best chain over a set of sites
// with a given head and tail, extended by the best transfer to a further site,
// closed to a ring at the end. The method is that of TCCL (Kim, Ryu, Lee,
// "TCCL: discovering better communication paths for PCIe GPU clusters", ASPLOS
// 2024), generalised to sites that differ.
//
// Solver works on a bandwidth matrix, as a ring solver of the master. Planner
// works on simultaneous measurements: it knows that transfers share channels,
// and may send a hop through a third peer where the direct link is slow.
package hierarchical
