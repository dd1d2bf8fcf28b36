# Runs inside the machine: installs a .deb, runs a task, upgrades, removes and purges. The task must outlive all steps except the
# purge. The purge must leave nothing.
set -u
ip link set lo up 2>/dev/null
grep -qs localhost /etc/hosts || echo '127.0.0.1 localhost' >>/etc/hosts
failed=0
holds() { # WHAT COMMAND...
  local what=$1; shift
  if "$@" >/out/last.txt 2>&1; then echo "ok       $what"; else echo "FAILED   $what"; cat /out/last.txt; failed=1; fi
}
timed() { # WHAT COMMAND...
  local what=$1 begun; begun=$(date +%s.%N); shift
  holds "$what" "$@"
  echo "         $(date +%s.%N) $begun" | awk '{ printf "         %.1f s\n", $1 - $2 }'
}
listed() { dpkg -L meseta | grep -qx "$1"; }
absent() { [ ! -e "$1" ]; }
unknown() { ! getent passwd "$1"; }
inactive() { ! systemctl is-active "$1"; }
# The process and its start time: another process with the same pid does not count.
task() { pid=$(pgrep -x -f 'sleep 86400') && echo "$pid $(awk '{ print $22 }' "/proc/$pid/stat")"; }
same_task() { [ "$(task)" = "$started" ]; }
ended_task() { ! pgrep -x -f 'sleep 86400'; }
runs() { meseta tasks | grep -q TASK_RUNNING; }
installed() { dpkg -s meseta | grep -qx 'Status: install ok installed'; }
soon() { local n; for n in $(seq 60); do "$@" && return; sleep 1; done; return 1; }

timed "install" dpkg -i first.deb
holds "the agent is not started by itself" inactive meseta-agent
holds "the users are there" getent passwd meseta meseta-master meseta-scheduler
# The machine's disk has no manuals.
holds "the package has the manual" listed /usr/share/man/man1/meseta-agent.1.gz
echo 'attributes = "rack:r1"' >>/etc/meseta/agent.toml
timed "start" systemctl enable --now meseta-master meseta-agent
timed "start the scheduler of jobs" systemctl enable --now meseta-scheduler
holds "the scheduler answers" meseta jobs
timed "a task runs" meseta execute --detach --name=long --command='exec sleep 86400' --resources='cpus:0.1;mem:32'
holds "the scope can be stopped" systemctl stop meseta-tasks.scope
holds "the task has ended" soon ended_task
timed "another task runs" meseta execute --detach --name=long --command='exec sleep 86400' --resources='cpus:0.1;mem:32'
holds "the scope is there again" systemctl is-active meseta-tasks.scope
started=$(task)
agent=$(systemctl show -p MainPID meseta-agent)

timed "upgrade" dpkg -i second.deb
holds "the task is the same process" same_task
holds "the agent is another one" test "$agent" != "$(systemctl show -p MainPID meseta-agent)"
holds "the agent has the task" soon runs

# An agent that does not start: it was registered with attributes, and now has none.
sed -i '/^attributes/d' /etc/meseta/agent.toml
timed "install again, with an agent that does not start" dpkg -i second.deb
holds "the package is installed all the same" installed
holds "the agent is not tried again and again" systemctl is-failed meseta-agent
echo 'attributes = "rack:r1"' >>/etc/meseta/agent.toml
timed "install again, with what the agent needs" dpkg -i second.deb
holds "the agent that had failed has started" systemctl is-active meseta-agent
holds "the task is the same process still" same_task
holds "the agent has the task again" soon runs

timed "remove" dpkg -r meseta
holds "the agent has ended" inactive meseta-agent
holds "the scheduler has ended" inactive meseta-scheduler
holds "the task goes on" same_task
holds "the configuration stays" test -e /etc/meseta/agent.toml
timed "purge" dpkg -P meseta
holds "the task has ended" soon ended_task
for path in /etc/meseta /var/lib/meseta /run/meseta /usr/bin/meseta /usr/share/doc/meseta /usr/lib/systemd/system/meseta.slice; do
  holds "$path is gone" absent $path
done
for user in meseta meseta-master meseta-scheduler; do holds "the user $user is gone" unknown $user; done
holds "no scope is left" inactive meseta-tasks.scope
exit $failed
