#!/usr/bin/env bash
# Builds a current Kubernetes control plane for the tests: kube-apiserver, kube-scheduler, kube-controller-manager and
# etcd are dependencies of the Go module beside this script, whose go.mod says the versions.
#
#   tools/control_plane/build.sh FOLDER
#
# FOLDER appears once all is in it. Needs Go and a Go module proxy, no root and no container engine. The first time takes
# 5 to 10 minutes on 2 cores (measured: 26 s of downloads, 296 s of compiling), 0.6 GB of modules and 2.8 GB of Go's
# build cache; with these, 26 s. binaries.py calls it, and knows where FOLDER has to be. build-1.20.sh is the same for
# Kubernetes 1.20.2.
#
# For another version replace v1.36.3 and v0.36.3 in go.mod, and run `go mod tidy`.
set -euo pipefail

if [ $# -ne 1 ]; then
    echo "usage: $0 FOLDER" >&2
    exit 2
fi
target=$(realpath -m "$1")
cd "$(dirname "$0")"
needs=$(awk '$1 == "go" { print $2 }' go.mod)
if ! command -v go >/dev/null; then
    echo "needs Go $needs or later on the PATH: https://go.dev/dl" >&2
    exit 1
fi
export CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false"
export GOTOOLCHAIN=auto # Go 1.21 and later fetches the one that go.mod names
if ! said=$(go version 2>&1) || ! go list -m >/dev/null 2>&1; then
    echo "needs Go $needs or later, and $(command -v go) says: ${said##*$'\n'}: https://go.dev/dl" >&2
    exit 1
fi
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes) # v1.36.3
IFS=. read -r major minor _ <<<"${version#v}"
stamp=k8s.io/component-base/version # without it the API server refuses its own feature gates
flags="-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=$major -X $stamp.gitMinor=$minor"

staging=$target.$$
trap 'rm -rf "$staging"' EXIT
mkdir -p "$staging"
for name in kube-scheduler kube-apiserver kube-controller-manager; do
    go build -trimpath -ldflags "$flags" -o "$staging/$name" "k8s.io/kubernetes/cmd/$name"
    echo "[${SECONDS}s] built $name $version"
done
go build -trimpath -ldflags "-s -w" -o "$staging/etcd" go.etcd.io/etcd/server/v3
echo "[${SECONDS}s] all in $target"
mv -T "$staging" "$target"
