#!/bin/sh
# The service of a campaign's worker: service.sh (restart|pid|stop) FOLDER
folder=$2
pid=$(cat "$folder/run/pid" 2>/dev/null)

alive() {
    [ -n "$1" ] && [ -r "/proc/$1/stat" ] && ! grep -q ') [ZX] ' "/proc/$1/stat"
}

halt() {
    if alive "$pid"; then
        kill -9 "$pid"
        while alive "$pid"; do sleep 0.002; done
    fi
}

case $1 in
    pid) if alive "$pid"; then echo "$pid"; else echo 0; fi ;;
    stop) halt ;;
    restart)
        echo restart >>"$folder/run/restarts"
        halt
        setsid bash "$folder/serve_decode.sh" </dev/null >>"$folder/run/own.log" 2>&1 &
        echo $! >"$folder/run/pid.part"
        mv "$folder/run/pid.part" "$folder/run/pid"
        ;;
esac
