#!/usr/bin/env bash
# Builds the oldest Kubernetes control plane that is supported, out of Debian's packages only: no container engine, no
# root, and nothing is installed. kube-apiserver, kube-scheduler and kube-controller-manager are compiled from the source
# that Debian has; etcd is taken as it is. The tests run on a current one (build.sh), and on this one on request:
#
#   HIVED_KUBERNETES=1.20.2 pytest tests/kubernetes/real
#   tools/control_plane/build-1.20.sh FOLDER
#
# FOLDER appears once all is in it. About 6 minutes on 2 cores, and 2.5 GB under TMPDIR while it runs.
# binaries.py calls it, and knows where FOLDER has to be.
set -euo pipefail

version=1.20.2 # of Kubernetes; binaries.py has both too
go=1.19        # of the compiler
suite=bookworm # the one suite of Debian that has both

if [ $# -ne 1 ]; then
    echo "usage: $0 FOLDER" >&2
    exit 2
fi
target=$1
for tool in apt-get dpkg-deb tar xz gzip awk sed grep; do
    if ! command -v "$tool" >/dev/null; then
        echo "$0: needs $tool: run it on Debian, with apt-get install dpkg xz-utils" >&2
        exit 1
    fi
done
if [ -e "$target" ]; then
    echo "$0: $target is there already: remove it to build anew" >&2
    exit 1
fi

work=$(mktemp -d)
staging=$target.$$
# Go makes its caches read-only
trap 'chmod -R u+w "$work"; rm -rf "$work" "$staging"' EXIT
mkdir -p "$staging"
say() { echo "[${SECONDS}s] $*"; }

# --- packages, by an apt of our own: this machine's mirror, but the suite and the sources that we need
mirror=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null || true; } |
    awk '/^URIs:/ { print $2; exit } /^deb / { for (i = 2; i <= NF; i++) if ($i ~ /:\/\//) { print $i; exit } }')
keys=/usr/share/keyrings/debian-archive-keyring.gpg
if [ -z "$mirror" ] || [ ! -e "$keys" ]; then
    echo "$0: finds no mirror of Debian in /etc/apt, or no $keys: run it on Debian" >&2
    exit 1
fi
apt=$work/apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/parts" "$work/packages"
printf '%s [signed-by='"$keys"'] '"$mirror $suite"' main\n' deb deb-src >"$apt/sources.list"
get() {
    apt-get -q -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts="$apt/parts" \
        -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User="$(id -un)" \
        -o Acquire::Retries=3 "$@" >>"$work/apt.log" 2>&1 || {
        echo "$0: apt-get $1: $(grep -E '^[EW]:' "$work/apt.log" | tail -n 1)" >&2
        exit 1
    }
}
cd "$work/packages"
get update
get download "golang-$go-go" "golang-$go-src" etcd-server golang-github-modern-go-reflect2-dev
get source --download-only "kubernetes/$suite"
say "downloaded $(du -sh . | cut -f1)"
for package in *.deb; do dpkg-deb -x "$package" "$work/root"; done
cp "$work/root/usr/bin/etcd" "$staging/"

# --- the tree (Debian's own patches are about kubectl, and not applied)
export GOROOT=$work/root/usr/lib/go-$go GOPATH=$work/gopath GOCACHE=$work/gocache
export GO111MODULE=off GOPROXY=off GOFLAGS='' CGO_ENABLED=0 HOME=$work PATH=$work/root/usr/lib/go-$go/bin:$PATH
tree=$GOPATH/src/k8s.io/kubernetes
mkdir -p "$tree"
tar -xzf kubernetes_*.orig.tar.gz -C "$tree" --strip-components=1
cd "$tree"
# the vendored reflect2 is too old for this compiler
reflect2=vendor/github.com/modern-go/reflect2
rm "$reflect2"/*.go "$reflect2"/*.s
cp "$work/root/usr/share/gocode/src/github.com/modern-go/reflect2"/*.go "$reflect2/"
find "$work/root/usr/share/gocode/src/github.com/modern-go/reflect2" -name '*.s' -exec cp {} "$reflect2/" \;
rm -f "$reflect2"/*_test.go
# 1.20.0 to 1.20.9 never call an extender's preempt verb (kubernetes#102971): fixed as upstream did in 1.20.10
sed -i 's/^\(\t*\)frameworkruntime.WithPodNominator(nominator),$/&\n\1frameworkruntime.WithExtenders(extenders),/' \
    pkg/scheduler/factory.go
grep -q 'frameworkruntime.WithExtenders(extenders)' pkg/scheduler/factory.go

# --- the one generated file that the source lacks
go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
inputs=$(grep -rlE --include='*.go' '^// *\+k8s:openapi-gen=' pkg cmd plugin staging/src/k8s.io |
    grep -vE '/(code-generator|sample-apiserver|_examples|testdata)/' |
    sed 's#^staging/src/#vendor/#; s#/[^/]*$##; s#^#k8s.io/kubernetes/#' | LC_ALL=C sort -u | tr '\n' ',')
"$work/openapi-gen" --logtostderr -i "${inputs%,}" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
    -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$work/violations" >"$work/openapi.log" 2>&1 || {
    tail -n 5 "$work/openapi.log" >&2
    exit 1
}
say "generated the OpenAPI definitions"

flags='-s -w'
for package in k8s.io/kubernetes/vendor/k8s.io/component-base/version k8s.io/kubernetes/vendor/k8s.io/client-go/pkg/version; do
    flags="$flags -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=20"
done
for name in kube-apiserver kube-scheduler kube-controller-manager; do
    go build -trimpath -ldflags "$flags" -o "$staging/$name" "./cmd/$name"
    say "built $name"
done
mv -T "$staging" "$target"
say "all in $target"
