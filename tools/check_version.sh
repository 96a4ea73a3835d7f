#!/bin/sh
# Checks that a tag names the version of the package, and that the citation and the changelog know it:
#     sh tools/check_version.sh v0.1.0
set -eu
cd "$(dirname "$0")/.."
tag=${1:?"give a tag, such as v0.1.0"}
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' src/legrad/__init__.py)
cited=$(sed -n 's/^version: "\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' CITATION.cff)
fail() { echo "$1" >&2; exit 1; }
[ "$tag" = "v$version" ] || fail "the tag is $tag, but src/legrad/__init__.py has the version $version"
[ "$cited" = "$version" ] || fail "CITATION.cff has the version $cited, not $version"
grep -qF "## [$version] - " CHANGELOG.md || fail "CHANGELOG.md has no dated section for $version"
echo "$tag: package, citation and changelog agree"
