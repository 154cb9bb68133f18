#!/bin/sh
# The smallest service there can be: service.sh (restart|pid|stop) FOLDER SCRIPT
folder=$2
pid=$(cat "$folder/pid" 2>/dev/null)

alive() {
    [ -n "$1" ] && [ -r "/proc/$1/stat" ] && ! grep -q ') [ZX] ' "/proc/$1/stat"
}

stop() {
    if alive "$pid"; then
        kill -9 "$pid"
        while alive "$pid"; do sleep 0.01; done
    fi
}

case $1 in
    pid) if alive "$pid"; then echo "$pid"; else echo 0; fi ;;
    stop) stop ;;
    restart)
        echo restart >>"$folder/restarts"
        if [ -e "$folder/broken" ]; then echo "the unit is masked"; exit 5; fi
        stop
        if [ -e "$folder/slow" ]; then sleep "$(cat "$folder/slow")"; fi
        setsid bash "$3" </dev/null >>"$folder/log" 2>&1 &
        echo $! >"$folder/pid.part"
        mv "$folder/pid.part" "$folder/pid"
        ;;
esac
