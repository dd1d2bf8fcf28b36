#!/usr/bin/env bash
# A complete Mesos framework with curl and the standard tools of any system.
#
#     docs/examples/framework.sh 127.0.0.1:5050 'echo hello'
#
# Runs one command as a task, acknowledges its updates, and exits with 0 when the task has finished.
# This script is for reading and trying. It parses JSON with sed: do not do this in a real program.
set -euo pipefail

master=$1 command=$2
api=http://$master/api/v1/scheduler
dir=$(mktemp -d)
trap 'kill "$stream" 2>/dev/null || true; rm -rf "$dir"' EXIT
json='Content-Type: application/json'

# SUBSCRIBE: the answer is a stream that stays open. The headers of the answer contain the id of the
# stream, and every other call has to send this id.
curl -sN -D "$dir/headers" -H "$json" -d '{"type": "SUBSCRIBE", "subscribe": {"framework_info":
  {"user": "root", "name": "curl", "role": "dev", "failover_timeout": 60}}}' "$api" >"$dir/events" &
stream=$!

# Waits for the first event with the text $1, from byte $2 of the stream on, and prints this event. An
# event is a record: its length in decimal, a line feed, the JSON. The JSON contains no line feed.
event() {
  for _ in $(seq 300); do
    if tail -c "+$2" "$dir/events" 2>/dev/null | tr '\n' ' ' | grep -o '{"type.*' |
      sed 's/} *[0-9]* {"type/}\n{"type/g' |
      awk -v wanted="$1" '!found && $0 ~ wanted { print; found = 1 } END { exit !found }'; then
      return
    fi
    kill -0 "$stream" || { echo 'the stream ended' >&2; exit 1; }
    sleep 0.1
  done
  echo "no event with $1" >&2
  exit 1
}

# Prints the value of "KEY":{"value":"..."} or "KEY":"..." in an event.
field() { sed -E "s/.*\"$1\":(\{\"value\":)?\"([^\"]*)\".*/\2/"; }

# Sends a call, and exits unless the master accepts it (202, no body).
call() {
  status=$(curl -s -o "$dir/answer" -w '%{http_code}' -H "$json" -H "Mesos-Stream-Id: $stream_id" \
    -d "{\"framework_id\": {\"value\": \"$framework\"}, $1}" "$api")
  [ "$status" = 202 ] || { echo "refused with $status: $(cat "$dir/answer")" >&2; exit 1; }
}

framework=$(event '"type":"SUBSCRIBED"' 1 | field framework_id)
stream_id=$(sed -nE 's/^[Mm]esos-[Ss]tream-[Ii]d: ([^\r]*).*/\1/p' "$dir/headers")
echo "framework $framework"

offer=$(event '"type":"OFFERS"' 1 | sed 's/.*"offers":\[//')
offer_id=$(echo "$offer" | sed -E 's/.*"id":\{"value":"([^"]*-O[0-9]+)"\}.*/\1/')
agent=$(echo "$offer" | field agent_id)
echo "offer $offer_id of agent $agent"

resources='[{"name": "cpus", "type": "SCALAR", "scalar": {"value": 0.1}},
            {"name": "mem", "type": "SCALAR", "scalar": {"value": 32}}]'
task="{\"name\": \"curl\", \"task_id\": {\"value\": \"curl-task\"}, \"agent_id\": {\"value\": \"$agent\"},
       \"command\": {\"value\": \"$command\"}, \"resources\": $resources}"
call "\"type\": \"ACCEPT\", \"accept\": {\"offer_ids\": [{\"value\": \"$offer_id\"}], \"operations\":
  [{\"type\": \"LAUNCH\", \"launch\": {\"task_infos\": [$task]}}]}"
call '"type": "SUPPRESS"'

# An update with a uuid comes again and again until the framework acknowledges this update.
seen=1
while true; do
  update=$(event '"type":"UPDATE".*"uuid"' "$seen")
  uuid=$(echo "$update" | field uuid)
  seen=$(grep -abFo "$uuid" "$dir/events" | awk -F: 'NR == 1 { print $1 + 1 }')
  state=$(echo "$update" | field state)
  echo "$state"
  call "\"type\": \"ACKNOWLEDGE\", \"acknowledge\": {\"agent_id\": {\"value\": \"$agent\"},
    \"task_id\": {\"value\": \"curl-task\"}, \"uuid\": \"$uuid\"}"
  case $state in
    TASK_FINISHED) call '"type": "TEARDOWN"'; exit 0 ;;
    TASK_FAILED | TASK_LOST | TASK_KILLED | TASK_ERROR) call '"type": "TEARDOWN"'; exit 1 ;;
  esac
done
