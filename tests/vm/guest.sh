# Runs inside the machine: installs the units as a package would, then the suites. Left in /out: their outputs.
set -u
install -m 755 meseta /usr/bin/meseta
install -m 644 systemd/*.service systemd/*.slice /etc/systemd/system/
install -D -m 644 systemd/meseta.sysusers /usr/lib/sysusers.d/meseta.conf
install -D -m 644 systemd/meseta.tmpfiles /usr/lib/tmpfiles.d/meseta.conf
install -D -m 644 systemd/master.toml /etc/meseta/master.toml
install -D -m 644 systemd/agent.toml /etc/meseta/agent.toml
cat >>/etc/meseta/agent.toml <<T
resources = "cpus:8;mem:700;disk:500"
isolation = "cgroups/cpu,cgroups/mem,cgroups/pids,cgroups/blkio,linux/nnp,namespaces/ipc,namespaces/mnt,namespaces/pid,namespaces/uts,posix/rlimits"
cgroups_pids_limit = 64
T
# A watchdog that is not waited for half a minute; an emulated machine answers within ten seconds.
mkdir -p /etc/systemd/system/meseta-agent.service.d
printf '[Service]\nWatchdogSec=10s\n' >/etc/systemd/system/meseta-agent.service.d/vm.conf
ip link set lo up 2>/dev/null
systemd-sysusers; systemd-tmpfiles --create
systemctl daemon-reload
export MESETA_TEST_MACHINE=1 MESETA_TEST_PATIENCE=180
failed=0
suite() { # NAME PROGRAM ARGUMENT...
  name=$1; shift
  # On the console too: a run that is cut short leaves nothing else.
  { "$@" 2>&1 || echo "$name failed"; } | tee /out/"$name".txt >/dev/console
  grep -q "^$name failed" /out/"$name".txt && failed=1
  echo "== $name"
  grep -E '^test .* (ok|FAILED|ignored)' /out/"$name".txt
  tail -n 2 /out/"$name".txt
}
filter=$(cat filter)
[ -n "$filter" ] || suite isolation ./kernel unified:: --test-threads 2
suite systemd-1 ./systemd-scenarios $filter
suite systemd-2 ./systemd-scenarios $filter
systemctl status meseta-agent meseta-master meseta-tasks.scope --no-pager -l >/out/units.txt 2>&1
systemd-cgls --no-pager >/out/groups.txt 2>&1
exit $failed
