#!/usr/bin/env bash
# Known vulnerabilities in what the programs link and call, by govulncheck. The database is what GOPCCL_VULNDB names (a
# directory or a URL), that of vuln.go.dev, or the copy that an earlier run has kept.
. "$(dirname "$0")/common.sh"

check() {
	go tool -modfile=tools/go.mod govulncheck -db "$1" ./... || fail "govulncheck, with the database $2"
	echo "govulncheck: nothing found, with the database $2"
}

kept=$cache/vulndb
case ${GOPCCL_VULNDB:-} in
"") ;;
*://*) check "$GOPCCL_VULNDB" "at $GOPCCL_VULNDB" && exit ;;
*) check "file://$(realpath "$GOPCCL_VULNDB")" "in $GOPCCL_VULNDB" && exit ;;
esac

new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
if curl -fsSL --connect-timeout 5 --max-time 60 -o "$new/db.zip" https://vuln.go.dev/vulndb.zip 2>/dev/null &&
	python3 -m zipfile -e "$new/db.zip" "$new/db" && [ -s "$new/db/index/modules.json" ]; then
	mkdir -p "$cache"
	rm -rf "$kept"
	mv "$new/db" "$kept"
fi
if [ -s "$kept/index/modules.json" ]; then
	check "file://$kept" "of $(date -r "$kept/index/modules.json" +%F), kept in $kept"
	exit
fi
unseen "the check for known vulnerabilities" "vuln.go.dev cannot be reached, and no copy of its database is kept" \
	"GOPCCL_VULNDB=DIR names an unpacked vulndb.zip"
